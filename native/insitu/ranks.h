// Asks the MPI library that the solver has loaded whether all ranks of a communicator are ready.
#pragma once

#include <cstdint>

namespace lapwing::insitu {

// Collective over the communicator with this Fortran handle. Otherwise a rank without Python would leave the others waiting in
// their first reduction. Without an MPI library each rank decides for itself.
bool all_ready(int64_t comm_f, bool ready);

}  // namespace lapwing::insitu
