// FAILS(E, text, code): the code throws an E whose message begins with this file and line and contains the text.
#pragma once

#include <catch2/catch.hpp>
#include <string>

template <class E, class Fn>
void fails(const std::string& file, int line, const std::string& begins, const std::string& text, const Fn& fn) {
    INFO("line " << line);
    try {
        fn();
        CHECK(std::string("an error") == "nothing thrown");
    } catch (const E& error) {
        const std::string what = error.what();
        INFO(what);
        CHECK(what.find(file.substr(file.rfind('/') + 1) + ":" + std::to_string(line) + ": " + begins) == 0);
        CHECK(what.find(text) != std::string::npos);
    }
}

// FAILS_IN: the message goes on with `begins` behind file and line.
#define FAILS_IN(E, begins, text, ...) fails<E>(__FILE__, __LINE__, begins, text, [&] { __VA_ARGS__; })
#define FAILS(E, text, ...) FAILS_IN(E, "", text, __VA_ARGS__)
