// Keeps files and sockets off the descriptors of stdin, stdout and stderr.
#pragma once

namespace kvbridge::base {

// Where one of the three is closed, the next thing opened would get its number, and text meant for
// people. Takes it with /dev/null, opened the wrong way round: reading and writing fail as before,
// so that output which goes nowhere is still an error. To be called before anything is opened.
// False where that can't be had.
[[nodiscard]] bool OccupyStandardStreams();

}  // namespace kvbridge::base
