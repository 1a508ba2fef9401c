// CLI11's classes by their names: what its header brings with it takes every file that includes it seconds to compile.
#pragma once

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI
