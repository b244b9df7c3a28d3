// Whether all ranks of an MPI communicator are ready, asked of the MPI library that the solver has loaded.
#pragma once

#include <cstdint>

namespace lapwing::insitu {

// Collective over the communicator with this Fortran handle. Without it a rank that has no Python would leave the others
// waiting in their first reduction. Where there is no MPI to ask each rank decides for itself.
bool all_ready(int64_t comm_f, bool ready);

}  // namespace lapwing::insitu
