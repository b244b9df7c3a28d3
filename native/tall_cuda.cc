#include "tall_cuda.h"

namespace lapwing::cuda {
bool tall_open(Frame& , size_t , TallDevice* ) {return false;}
void tall_close(TallDevice* ) {}
bool tall_upload(Frame& , void* , const void* , size_t ) {return false;}
int64_t tall_bytes(const Frame& ) {return 0;}
}
namespace lapwing {
template <class R>
bool tall_pass_cuda(Frame& , const TallPass<R>& , const TallDevice& ) {return false;}
template <class R>
bool tall_largest_cuda(Frame& , const TallPass<R>& , const TallDevice& , double* ) {return false;}
template bool tall_pass_cuda<float>(Frame& , const TallPass<float>& , const TallDevice& );
template bool tall_pass_cuda<double>(Frame& , const TallPass<double>& , const TallDevice& );
template bool tall_largest_cuda<float>(Frame& , const TallPass<float>& , const TallDevice& , double* );
template bool tall_largest_cuda<double>(Frame& , const TallPass<double>& , const TallDevice& , double* );
}
