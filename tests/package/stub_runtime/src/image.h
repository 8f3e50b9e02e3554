#include "../../../../runtime/src/image.h"
