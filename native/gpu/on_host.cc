#include "gpu/on_host.h"

#include <algorithm>
#include <vector>

#include "gpu/dry.h"
#include "gpu/vendor.h"
#include "operations.h"

namespace lapwing::cuda {
namespace {

constexpr int64_t PART_BYTES = int64_t(1) << 28;  // of copies at a time, or one matrix

// Of the arrays of one matrix, in the order of the buffers
std::vector<size_t> bytes_of_one(const Frame& frame) {
  const Operation& operation = OPERATIONS[frame.op];
  std::vector<size_t> bytes;
  const auto add = [&](const Argument& argument) { bytes.push_back(size_t(elements(frame, argument)) * size_of(frame, argument)); };
  std::for_each_n(operation.inputs, count_of(operation.inputs), add);
  std::for_each_n(operation.outputs, count_of(operation.outputs), add);
  return bytes;
}

int64_t part_size(const Frame& frame, int64_t one) { return std::clamp<int64_t>(PART_BYTES / one, 1, frame.size[0]); }

int copied(Frame& frame, int status) { return status ? fail(frame, "a copy between GPU and host failed with status %d", status) : 0; }

}  // namespace

int on_host(Frame& frame, int (*run)(Frame&)) {
  if (Dry::current()) return 0;  // no kernel, and the work would be done
  const auto& api = vendor::table();
  const std::vector<size_t> bytes = bytes_of_one(frame);
  const size_t inputs = size_t(count_of(OPERATIONS[frame.op].inputs));
  int64_t one = 0;
  for (size_t size : bytes) one += int64_t(size);
  const int64_t step = part_size(frame, one);
  std::vector<std::vector<char>> host(bytes.size());
  for (size_t i = 0; i < bytes.size(); i++) host[i].resize(bytes[i] * size_t(step));
  for (int64_t first = 0; first < frame.size[0]; first += step) {
    Frame part = part_of(frame, first, std::min(step, frame.size[0] - first)), inner = part;
    const auto size = [&](size_t i) { return bytes[i] * size_t(part.size[0]); };
    inner.device = CPU, inner.ordinal = -1, inner.engine = AUTO, inner.named = false, inner.stream = nullptr, inner.scratch = {};
    for (size_t i = 0; i < bytes.size(); i++) inner.buffer[i] = host[i].data();
    int status = 0;
    for (size_t i = 0; i < inputs && !status; i++)
      status = api.copy_to_host(host[i].data(), reinterpret_cast<uint64_t>(part.buffer[i]), size(i), frame.stream);
    if (!status) status = api.synchronize(frame.stream);
    if (copied(frame, status)) return 1;
    if (run(inner)) return fail_as(frame, inner);
    for (size_t i = inputs; i < bytes.size() && !status; i++)
      status = api.copy_to_device(reinterpret_cast<uint64_t>(part.buffer[i]), host[i].data(), size(i), frame.stream);
    if (!status) status = api.synchronize(frame.stream);  // the next part needs the memory
    if (copied(frame, status)) return 1;
  }
  return 0;
}

int64_t on_host_bytes(const Frame& frame) {
  int64_t one = 0;
  for (size_t size : bytes_of_one(frame)) one += int64_t(size);
  return one * part_size(frame, one);
}

}  // namespace lapwing::cuda
