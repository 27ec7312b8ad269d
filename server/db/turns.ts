/** A lock that is taken in the order of asking. Resolves with the function that releases it. */
export function createTurns(): () => Promise<() => void> {
  let last = Promise.resolve()
  return async () => {
    const previous = last
    const { promise, resolve } = Promise.withResolvers<void>()
    last = promise
    await previous
    return resolve
  }
}
