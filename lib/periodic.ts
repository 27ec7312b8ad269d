export interface PeriodicTask {
  /** Ends the task and waits for the current run. */
  close(): Promise<void>
}

/**
 * Runs `work` now and every `every_ms`; with `delayed` it first runs after `every_ms`. Skips a run while the last one
 * is not done. `work` must not reject.
 */
export function runPeriodically(every_ms: number, work: () => Promise<void>, { delayed = false } = {}): PeriodicTask {
  let current: Promise<void> | undefined
  const run = () => {
    current ??= work().finally(() => {
      current = undefined
    })
  }
  if (!delayed) run()
  const timer = setInterval(run, every_ms).unref()
  return {
    async close() {
      clearInterval(timer)
      await current
    },
  }
}
