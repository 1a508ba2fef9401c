// What a stream sends, asked for when its connection takes more.
#pragma once

#include <string>

namespace lime {

// Thread: the server's. A call delays all connections until it returns, so it must not block.
class BodySource {
 public:
  virtual ~BodySource() = default;

  // Appends what waits to `out`: all of it, or about 64 KiB of it. Appends nothing if nothing waits;
  // HttpAnswer::Wake then says when something does. Returns true if that was the last. Called only
  // when the connection has sent all earlier bytes, so a client that reads slowly costs the memory of
  // one call.
  virtual bool Pull(std::string& out) = 0;

  // Nothing was sent for as long as HttpAnswer::Stream says: appends a sign of life, or nothing.
  virtual void OnSilence(std::string& out) = 0;
};

}  // namespace lime
