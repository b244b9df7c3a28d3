#include "methods/tall_pass.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "gpu/tall.h"

namespace lapwing {

template <class R>
TallRows<R>::TallRows(Frame& frame) : frame_(frame), cpu_(frame.device == CPU) {
  if (!cpu_) ok_ = cuda::tall_open(frame, &device_);
}

template <class R>
TallRows<R>::~TallRows() {
  std::free(kept_);
  if (!cpu_) cuda::tall_close(&device_);
}

template <class R>
bool TallRows<R>::may_forget() const {
  return cpu_ || cuda::tall_together(frame_);
}

template <class R>
R* TallRows<R>::room(R* out) {
  if (!cpu_) return frame_.op == QR ? out : static_cast<R*>(device_.kept);
  if (out) return out;
  if (!kept_) {
    constexpr size_t PAGE = size_t(1) << 21;
    const size_t bytes = size_of(frame_.dtype) * size_t(frame_.size[1] * frame_.size[2]);
    kept_ = std::aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (!kept_) throw std::bad_alloc();
    madvise(kept_, bytes, MADV_HUGEPAGE);  // first touching it in small pages takes as long as a pass
  }
  return static_cast<R*>(kept_);
}

template <class R>
bool TallRows<R>::write(void* to, const void* host, size_t bytes) {
  if (!cpu_) return cuda::tall_upload(frame_, to, host, bytes);
  std::memcpy(to, host, bytes);
  return true;
}

template class TallRows<float>;
template class TallRows<double>;

}  // namespace lapwing
