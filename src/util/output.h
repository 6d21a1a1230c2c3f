// Standard output, checked: what could not be written is an error, not a shorter file.
#pragma once

namespace strata {

// Called first in main(). Standard streams that are closed are opened so that no file takes their number and using them
// fails. A pipe that its reader closed is an error of the write, not a signal that ends the process unsaved.
void prepare_streams();

// Writes what is pending. Throws an output error, or, if the reader has closed the pipe, ExitCode::kClosedPipe. reason:
// errno of a write that has failed before; 0: none is known.
void flush_output(int reason = 0);

}  // namespace strata
