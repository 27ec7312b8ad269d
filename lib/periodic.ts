/**
 * Does it now and each `every_ms`, until what it returns is closed, which waits for the last. What may fail is caught
 * in `work`.
 */
export function nowAndThen(every_ms: number, work: () => Promise<void>): { close(): Promise<void> } {
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
