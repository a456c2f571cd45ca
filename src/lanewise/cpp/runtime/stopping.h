#pragma once
#include "keywords.h"

// A kernel that can be stopped asks where its loops pause, but only now and then: the flag is far away. (Threads of a
// host are called out of their kernels by a signal, see `foreign.py`.)
#ifdef LW_STOPS
extern "C" {
LW_GLOBAL volatile int lw_stop;
}
#define LW_LISTEN long long lw_asked = LW_CLOCK;
#define LW_PAUSE if (LW_CLOCK - lw_asked > LW_STOPS) { if (lw_stop) return; lw_asked = LW_CLOCK; }
#else
#define LW_LISTEN
#define LW_PAUSE ;
#endif
