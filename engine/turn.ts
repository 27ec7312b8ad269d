// Work done one after the other.

export type Turn = <T>(work: () => T | Promise<T>) => Promise<T>

/** What is given to it is begun when everything given before has ended, however that ended. */
export function createTurn(): Turn {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const mine = last.then(work)
    last = mine.catch(() => {})
    return mine
  }
}
