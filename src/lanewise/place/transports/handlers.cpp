// What XLA calls, and what Python does: the handlers of `send`, `receive` and `require`, and the life of a session.
#include "local.h"
#include "life.h"

static int lw_do(lw_session* s, const lw_call* call, bool wait) {
  if (lw_is_faulty(s)) return LW_FAILED;
  if (call->kind == LW_REQUIRE)
    return *call->value ? (int)LW_DONE : lw_fail(s, LW_REQUIRED, s->me, call->number, "a requirement does not hold");
  return s->hub ? lw_local(s, call, wait) : lw_tcp(s, call, wait);
}

static lw_call lw_asked(XLA_FFI_CallFrame* frame, int kind) {
  XLA_FFI_Buffer* value = (XLA_FFI_Buffer*)(kind == LW_RECEIVE ? frame->rets.rets[1] : frame->args.args[1]);
  return {kind, (int)lw_attribute(frame, "peer"), lw_attribute(frame, "number"), lw_attribute(frame, "bytes"),
          (char*)value->data};
}

static XLA_FFI_Error* lw_refused(XLA_FFI_CallFrame* frame, lw_session* s) {
  XLA_FFI_Error* error = lw_failed(frame, XLA_FFI_Error_Code_UNAVAILABLE, s->fault.message);
  lw_leave(s);
  return error;
}

static XLA_FFI_Error* lw_unknown(XLA_FFI_CallFrame* frame) {
  return lw_failed(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, "lanewise: the session of this token is closed");
}

static XLA_FFI_Error* lw_on_cpu(XLA_FFI_CallFrame* frame, int kind) {
  if (lw_asks_version(frame)) return nullptr;
  int32_t* token = (int32_t*)((XLA_FFI_Buffer*)frame->args.args[0])->data;
  int32_t* next_token = (int32_t*)((XLA_FFI_Buffer*)frame->rets.rets[0])->data;
  lw_session* s = lw_enter(*token);
  if (!s) return lw_unknown(frame);
  const lw_call call = lw_asked(frame, kind);
  int status = lw_do(s, &call, lw_ours);
  if (status == LW_LATER) {
    lw_job* job = (lw_job*)malloc(sizeof(lw_job));
    XLA_FFI_Future_Create_Args made = {XLA_FFI_Future_Create_Args_STRUCT_SIZE, nullptr, nullptr};
    XLA_FFI_Error* problem = job ? frame->api->XLA_FFI_Future_Create(&made) : nullptr;
    if (problem) return free(job), lw_leave(s), problem;
    if (job) {
      job->session = s, job->call = call, job->token = token, job->next_token = next_token;
      job->api = frame->api, job->future = made.future;
      fegetenv(&job->rounding);
      frame->future = made.future;
      if (lw_hand_over(s, job)) return nullptr;
      frame->future = nullptr;
      free(job);
    }
    // No memory for a thread: wait here.
    status = lw_do(s, &call, true);
  }
  if (status != LW_DONE) return lw_refused(frame, s);
  *next_token = *token;
  lw_leave(s);
  return nullptr;
}

extern "C" XLA_FFI_Error* lanewise_send(XLA_FFI_CallFrame* frame) { return lw_on_cpu(frame, LW_SEND); }
extern "C" XLA_FFI_Error* lanewise_receive(XLA_FFI_CallFrame* frame) { return lw_on_cpu(frame, LW_RECEIVE); }
extern "C" XLA_FFI_Error* lanewise_require(XLA_FFI_CallFrame* frame) { return lw_on_cpu(frame, LW_REQUIRE); }

// -- on a GPU ------------------------------------------------------------------------------------------

// Functions of CUDA's driver, looked for once.
struct lw_driver {
  int (*context_of)(void*, void**);
  int (*set_context)(void*);
  int (*to_host)(void*, unsigned long long, size_t, void*);
  int (*to_device)(unsigned long long, const void*, size_t, void*);
  int (*wait)(void*);
};

static const lw_driver* lw_cuda() {
  static lw_driver driver;
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return;
    *(void**)&driver.context_of = dlsym(library, "cuStreamGetCtx");
    *(void**)&driver.set_context = dlsym(library, "cuCtxSetCurrent");
    *(void**)&driver.to_host = dlsym(library, "cuMemcpyDtoHAsync_v2");
    *(void**)&driver.to_device = dlsym(library, "cuMemcpyHtoDAsync_v2");
    *(void**)&driver.wait = dlsym(library, "cuStreamSynchronize");
  });
  const bool all = driver.context_of && driver.set_context && driver.to_host && driver.to_device && driver.wait;
  return all ? &driver : nullptr;
}

// The token and the value come to the host behind all that the stream does before; what came goes back on the stream.
// Waiting is on the thread that launches for this device, and for no other.
static XLA_FFI_Error* lw_on_gpu(XLA_FFI_CallFrame* frame, int kind) {
  if (lw_asks_version(frame)) return nullptr;
  const lw_driver* cuda = lw_cuda();
  if (!cuda) return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: CUDA's driver was not found");
  XLA_FFI_Stream_Get_Args where = {XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  if (XLA_FFI_Error* error = frame->api->XLA_FFI_Stream_Get(&where)) return error;
  lw_call call = lw_asked(frame, kind);
  const unsigned long long on_device = (unsigned long long)call.value;
  const unsigned long long token_in = (unsigned long long)((XLA_FFI_Buffer*)frame->args.args[0])->data;
  const unsigned long long token_out = (unsigned long long)((XLA_FFI_Buffer*)frame->rets.rets[0])->data;
  call.value = (char*)malloc(call.bytes + 1);
  if (!call.value) return lw_failed(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "lanewise: no memory for a message");
  int32_t token = 0;
  void* context = nullptr;
  int status = cuda->context_of(where.stream, &context) || cuda->set_context(context) ||
               cuda->to_host(&token, token_in, sizeof token, where.stream);
  if (!status && kind != LW_RECEIVE && call.bytes)
    status = cuda->to_host(call.value, on_device, call.bytes, where.stream);
  status = status || cuda->wait(where.stream);
  lw_session* s = status ? nullptr : lw_enter(token);
  const bool done = s && lw_do(s, &call, true) == LW_DONE;
  if (done) {
    status = cuda->to_device(token_out, &token, sizeof token, where.stream);
    if (!status && kind == LW_RECEIVE && call.bytes)
      status = cuda->to_device(on_device, call.value, call.bytes, where.stream);
    status = status || cuda->wait(where.stream);
  }
  free(call.value);
  if (s && !done) return lw_refused(frame, s);
  if (s) lw_leave(s);
  if (status) return lw_failed(frame, XLA_FFI_Error_Code_INTERNAL, "lanewise: CUDA does not copy a message");
  return s ? nullptr : lw_unknown(frame);
}

extern "C" XLA_FFI_Error* lanewise_send_gpu(XLA_FFI_CallFrame* frame) { return lw_on_gpu(frame, LW_SEND); }
extern "C" XLA_FFI_Error* lanewise_receive_gpu(XLA_FFI_CallFrame* frame) { return lw_on_gpu(frame, LW_RECEIVE); }
extern "C" XLA_FFI_Error* lanewise_require_gpu(XLA_FFI_CallFrame* frame) { return lw_on_gpu(frame, LW_REQUIRE); }

// -- the life of a session -----------------------------------------------------------------------------

// The fault of a session: its kind, or 0.
extern "C" int lanewise_fault(int handle, lw_fault* out) {
  lw_session* s = lw_enter(handle);
  if (!s) return 0;
  pthread_mutex_lock(&s->guard);
  const int kind = s->faulty ? s->fault.kind : 0;
  if (kind) *out = s->fault;
  pthread_mutex_unlock(&s->guard);
  lw_leave(s);
  return kind;
}

extern "C" void lanewise_fail(int handle, int kind, const char* message) {
  lw_session* s = lw_enter(handle);
  if (!s) return;
  lw_fail(s, kind, s->me, 0, message);
  lw_leave(s);
}

// This place has ended: notify the others. `lanewise_ended` waits until they have, too, or the session has a fault.
extern "C" void lanewise_end(int handle) {
  lw_session* s = lw_enter(handle);
  if (!s) return;
  if (s->hub) lw_hub_ended(s);
  if (s->net) {
    __atomic_store_n(&s->net->closing, 1, __ATOMIC_RELEASE);
    lw_wake(s->net);
  }
  lw_leave(s);
}

extern "C" int lanewise_ended(int handle, double seconds) {
  lw_session* s = lw_enter(handle);
  if (!s) return 1;
  const int64_t until = lw_now() + (int64_t)(1e9 * seconds);
  pthread_mutex_lock(&s->guard);
  while (s->net && !s->net->ended && lw_wait_until(&s->changed, &s->guard, until)) continue;
  const int ended = !s->net || s->net->ended;
  pthread_mutex_unlock(&s->guard);
  lw_leave(s);
  return ended;
}

static void lw_free_session(lw_session* s) {
  if (s->hub) lw_hub_left(s);
  if (s->net) lw_free_net(s->net);
  while (lw_worker* worker = s->workers) {
    s->workers = worker->after;
    free(worker);
  }
  pthread_mutex_destroy(&s->guard);
  pthread_cond_destroy(&s->changed);
  pthread_cond_destroy(&s->work);
  free(s);
}

// Free a session that has ended. Handlers that are inside come out first: it fails for them.
extern "C" void lanewise_free(int handle) {
  lw_session* s = lw_enter(handle);
  if (!s) return;
  lw_forget(s);
  for (;; usleep(200)) {
    pthread_mutex_lock(&lw_table);
    const bool alone = s->inside == 1;
    pthread_mutex_unlock(&lw_table);
    if (alone) break;
    lw_fail(s, LW_INTERRUPTED, s->me, 0, "the session was closed");
  }
  if (s->net) {
    pthread_join(s->net->thread, nullptr);
    lw_close_files(s);
  }
  // A thread of ours may be in the middle of the function, which ends when it likes. Nothing waits for it for long.
  const int64_t until = lw_now() + LW_VERDICT;
  pthread_mutex_lock(&s->guard);
  s->quits = 1;
  pthread_cond_broadcast(&s->work);
  while (s->working && lw_wait_until(&s->changed, &s->guard, until)) continue;
  s->abandoned = s->working;
  for (lw_worker* worker = s->workers; s->abandoned && worker; worker = worker->after) pthread_detach(worker->thread);
  const bool abandoned = s->abandoned;
  pthread_mutex_unlock(&s->guard);
  if (abandoned) return;
  for (lw_worker* worker = s->workers; worker; worker = worker->after) pthread_join(worker->thread, nullptr);
  lw_free_session(s);
}

// How many sessions there are.
extern "C" int lanewise_sessions() {
  pthread_mutex_lock(&lw_table);
  int count = 0;
  for (lw_session* s = lw_sessions; s; s = s->after) ++count;
  pthread_mutex_unlock(&lw_table);
  return count;
}
