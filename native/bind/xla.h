// Handlers for XLA's foreign function interface: one for every operation, per platform.
#pragma once

extern "C" {
void* lapwing_xla_cpu(void* frame);
void* lapwing_xla_cuda(void* frame);
void* lapwing_xla_cuda_graph(void* frame);  // only for engines that launch and nothing else: may be captured in a graph
}
