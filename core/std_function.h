// std::function without the rest of <functional>, which brings in searchers, a hash table and the algorithms: with libstdc++, every file that
// includes Tapir compiles a tenth of a second faster, in 13 MB less, for it.
#pragma once

#if __has_include(<bits/std_function.h>)
#include <bits/std_function.h>  // libstdc++ 11 and later
#else
#include <functional>
#endif
