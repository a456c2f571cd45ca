// What launches kernels on a GPU, made once for all of them (`device.py`).
#include "calls.h"

struct lw_kernel {
  long long key;
  void *function, *context;
};
static lw_kernel* lw_kernels;
static long lw_count;
static pthread_mutex_t lw_guard = PTHREAD_MUTEX_INITIALIZER;

static int (*lw_set_context)(void*);
static int (*lw_clear)(void*, unsigned, size_t, void*);
static int (*lw_start)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                       void**);

extern "C" void lanewise_driver(void* set_context, void* clear, void* start) {
  lw_set_context = (int (*)(void*))set_context;
  lw_clear = (int (*)(void*, unsigned, size_t, void*))clear;
  lw_start = (int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                      void**))start;
}

extern "C" int lanewise_keep(long long key, void* function, void* context) {
  pthread_mutex_lock(&lw_guard);
  lw_kernel* more = (lw_kernel*)realloc(lw_kernels, (lw_count + 1) * sizeof(lw_kernel));
  if (more) {
    lw_kernels = more;
    lw_kernels[lw_count].key = key;
    lw_kernels[lw_count].function = function;
    lw_kernels[lw_count++].context = context;
  }
  pthread_mutex_unlock(&lw_guard);
  return more != nullptr;
}

// The latest that was registered under this key.
static lw_kernel lw_find(long long key) {
  lw_kernel found = {0, nullptr, nullptr};
  pthread_mutex_lock(&lw_guard);
  for (long i = lw_count - 1; i >= 0 && !found.function; --i)
    if (lw_kernels[i].key == key) found = lw_kernels[i];
  pthread_mutex_unlock(&lw_guard);
  return found;
}

extern "C" XLA_FFI_Error* lanewise_launch(XLA_FFI_CallFrame* frame) {
  if (lw_asks_version(frame)) return nullptr;
  const lw_kernel kernel = lw_find(lw_attribute(frame, "key"));
  if (!kernel.function)
    return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: the kernel was not loaded by this process");
  XLA_FFI_Stream_Get_Args where = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Stream_Get(&where)) return error;

  const int given = frame->args.size, made = frame->rets.size;
  void* buffers[given + made];
  void* arguments[given + made + 2];
  for (int i = 0; i < given; ++i) buffers[i] = ((XLA_FFI_Buffer*)frame->args.args[i])->data;
  for (int i = 0; i < made; ++i) buffers[given + i] = ((XLA_FFI_Buffer*)frame->rets.rets[i])->data;
  for (int i = 0; i < given + made; ++i) arguments[i] = &buffers[i];
  long long examples = lw_attribute(frame, "examples");
  int capacity = lw_attribute(frame, "capacity");
  arguments[given + made] = &examples;
  arguments[given + made + 1] = &capacity;
  if (lw_set_context(kernel.context) || lw_clear(buffers[given + made - 2], 0, 2, where.stream) ||
      lw_start(kernel.function, lw_attribute(frame, "blocks"), 1, 1, lw_attribute(frame, "threads"), 1, 1, 0,
               where.stream, arguments, nullptr))
    return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: CUDA does not launch the kernel");
  return nullptr;
}
