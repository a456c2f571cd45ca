// What every kernel begins with.
#pragma once
#include "keywords.h"
#include "threads.h"
#include "stopping.h"
#include "types.h"
