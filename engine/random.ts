// Random numbers that a seed repeats: sfc32, by Chris Doty-Humphrey (PractRand), here as published in the public domain.
import { randomInt } from 'node:crypto'

/** Numbers from 0 up to, but not including, 1. Without a seed, another sequence each time. Any integer is a seed. */
export function createRandom(seed: number | null): () => number {
  const start = seed ?? randomInt(2 ** 47)
  let a = start >>> 0
  let b = Math.floor(start / 2 ** 32) >>> 0
  let c = 0x9e3779b9
  let counter = 1
  const next = () => {
    const sum = (((a + b) >>> 0) + counter++) >>> 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) >>> 0
    c = (((c << 21) | (c >>> 11)) + sum) >>> 0
    return sum / 2 ** 32
  }
  // The first numbers of seeds that lie close together are alike.
  for (let round = 0; round < 12; round++) next()
  return next
}
