// Which adapter is merged next, and which copies make room for it.

export interface Hot {
  id: string
  heat: number
}
export interface Candidate extends Hot {
  /** What its copy will take, about. */
  bytes: number
}
export interface Kept extends Hot {
  bytes: number
  /** It is given up already, and takes its memory until its last request has ended. */
  leaving: boolean
}

/** Nothing to do where both are empty. */
export interface Plan {
  merge?: string
  giveUp: string[]
}

/** A copy makes room only for what is this much hotter: two that are about as hot must not take turns. */
const clearly = 2
/** A copy stays until its adapter has cooled to this share of what earned it. */
const cold = 1 / 8

/** `earned`: the heat from which an adapter is worth a copy. */
export function plan(
  candidates: readonly Candidate[],
  copies: readonly Kept[],
  earned: number,
  memory_bytes: number,
): Plan {
  const giveUp = copies.filter(({ heat, leaving }) => !leaving && heat < earned * cold).map(({ id }) => id)
  const taken = copies.reduce((sum, { bytes }) => sum + bytes, 0)
  const going = copies
    .filter(({ id, leaving }) => leaving || giveUp.includes(id))
    .reduce((sum, { bytes }) => sum + bytes, 0)
  const coldestFirst = copies
    .filter(({ id, leaving }) => !leaving && !giveUp.includes(id))
    .sort((a, b) => a.heat - b.heat)
  for (const { id, heat, bytes } of candidates.filter(({ heat }) => heat >= earned).sort((a, b) => b.heat - a.heat)) {
    if (taken + bytes <= memory_bytes) return { merge: id, giveUp }
    let missing = taken - going + bytes - memory_bytes
    const making: string[] = []
    for (const copy of coldestFirst) {
      if (missing <= 0 || copy.heat * clearly > heat) break
      making.push(copy.id)
      missing -= copy.bytes
    }
    // It is merged once they are gone.
    if (missing <= 0) return { giveUp: [...giveUp, ...making] }
  }
  return { giveUp }
}
