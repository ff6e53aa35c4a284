// SIGTERM and SIGINT ask a run to save and stop; a second one kills it.
#pragma once

namespace untied {

void catch_stop_signals();
bool stop_requested();
// Seconds since the first signal, 0 without one.
double seconds_since_stop_request();

}  // namespace untied
