// PyTorch's wheels ship ProcessGroupGloo.hpp and the compiled Gloo, but not Gloo's headers. These files declare the few
// names that the header mentions. Objects of these types are made and used inside libtorch only; strata holds pointers.
#pragma once
