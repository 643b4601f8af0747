// tapir.h after three libraries known for their macros.
#define CATCH_CONFIG_PREFIX_ALL  // Catch2's CHECK is also glog's
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <catch2/catch.hpp>

#include <tapir/tapir.h>
