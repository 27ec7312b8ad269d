/** Runs `work` now and every `every_ms`. `close()` waits for the current run. `work` must not reject. */
export function runPeriodically(every_ms: number, work: () => Promise<void>): { close(): Promise<void> } {
  let last = work()
  const timer = setInterval(() => {
    last = work()
  }, every_ms).unref()
  return {
    async close() {
      clearInterval(timer)
      await last
    },
  }
}
