// A stream faster than a screen: what it brings is shown at most once a frame, and the page stays free in between.

/** Between two showings: a page renders text of many lines in less. */
const gap_ms = 33
/** A tab in the background gets no frames. */
const longest_ms = 250

const nextFrame = () =>
  new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, longest_ms)
    requestAnimationFrame(() => {
      clearTimeout(timer)
      resolve()
    })
  })

/**
 * Await `next` after each piece of a stream: it shows what has come, and gives clicks their turn. `stop` once the
 * stream has ended, before its end is shown.
 */
export function inFrames(show: () => void): { next(): Promise<void>; stop(): void } {
  let shown = Number.NEGATIVE_INFINITY
  let timer: ReturnType<typeof setTimeout> | undefined
  const showNow = () => {
    clearTimeout(timer)
    timer = undefined
    show()
    shown = performance.now()
  }
  return {
    async next() {
      if (performance.now() - shown < gap_ms) {
        // The next piece may be long in coming.
        timer ??= setTimeout(showNow, gap_ms)
        return
      }
      showNow()
      await nextFrame()
      // A render that takes long leaves the page as much time for other things.
      shown = performance.now()
    },
    stop: () => clearTimeout(timer),
  }
}
