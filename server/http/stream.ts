/** Headers of an answer that is sent as it comes into being: nothing between here and the client may hold it back or cut it. */
export const streamHeaders = { 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' }
