// What every call that XLA makes into our C++ begins with: on the CPU (`entry.h`), on a GPU (`launcher.cpp`), and between
// places (`place/transports`).
#pragma once
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xla/ffi/api/c_api.h>

static long long lw_attribute(XLA_FFI_CallFrame* frame, const char* name) {
  for (int i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan* span = frame->attrs.names[i];
    if (strlen(name) == span->len && !strncmp(name, span->ptr, span->len))
      return *(const long long*)((const XLA_FFI_Scalar*)frame->attrs.attrs[i])->value;
  }
  return 0;
}

// The first call of all asks for the version of the interface, and for nothing else.
static bool lw_asks_version(XLA_FFI_CallFrame* frame) {
  if (!frame->extension_start || frame->extension_start->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata* about = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
  about->api_version.major_version = XLA_FFI_API_MAJOR;
  about->api_version.minor_version = XLA_FFI_API_MINOR;
  return true;
}

static XLA_FFI_Error* lw_failed(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* why) {
  XLA_FFI_Error_Create_Args about = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, why, code};
  return frame->api->XLA_FFI_Error_Create(&about);
}
