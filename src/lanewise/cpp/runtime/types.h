// The types of elements, by JAX's names; 16-bit floats and complex numbers are in headers of their own.
#pragma once

typedef signed char int8;
typedef short int16;
typedef int int32;
typedef long long int64;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef float float32;
typedef double float64;
struct key2 {
  uint32 word[2];
};
