// Features of pictures: encoded once, cached within a bound, and not for callers who have left.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { PicturePart } from '../../../engine/llama/mtmd.ts'
import type { Encoder } from '../../../engine/vision/encoder.ts'
import { Features } from '../../../engine/vision/features.ts'
import { positionsIn } from '../../../engine/vision/picture-tokens.ts'

const projector = { id: 1, path: '/projector.gguf', sha256: '', vector_length: 2, is_non_causal: false }
const vectors = (n_tokens: number, n_positions = n_tokens): PicturePart => ({
  kind: 'vectors',
  n_tokens,
  n_positions,
  positions: null,
})

/** An encoder whose encodings wait for `release`. Each picture has two tiles of 3 vectors between text tokens. */
function setUp({
  bytes_max = 1000,
  parts = [vectors(3), { kind: 'text', tokens: [7] } as PicturePart, vectors(3)],
} = {}) {
  const calls: string[] = []
  const held: (() => void)[] = []
  let holding = false
  const encoder: Encoder = {
    async call(request) {
      calls.push(request.kind)
      if (request.kind === 'encode') {
        if (holding) await new Promise<void>((resolve) => held.push(resolve))
        const part = parts[(request as { part: number }).part]!
        return new Float32Array(part.kind === 'vectors' ? 2 * part.n_tokens : 0) as never
      }
      return (request.kind === 'prepare' || request.kind === 'measure' ? parts : null) as never
    },
  }
  const decoder = {
    measure: async () => ({ width: 1, height: 1 }),
    decode: async () => ({ width: 1, height: 1, rgb: new Uint8Array(3) }),
  }
  const sources: string[] = []
  const features = new Features(encoder, decoder, (_projector, work) => work(), bytes_max, {
    onPicture: (source) => sources.push(source),
  })
  const of = (name: string, signal = new AbortController().signal, account = '') =>
    features.of(projector, Buffer.from(name), { account, signal })
  return {
    of,
    features,
    calls,
    sources,
    hold: () => {
      holding = true
    },
    release: () => {
      holding = false
      for (const release of held.splice(0)) release()
    },
    held,
    encodings: () => calls.filter((kind) => kind === 'encode').length,
  }
}
const turn = () => new Promise(setImmediate)

test('two requests for one picture share its encoding, and a third finds it cached', async () => {
  const { of, encodings, sources, hold, release, held } = setUp()
  hold()
  const [first, second] = [of('a'), of('a')]
  while (held.length === 0) await turn()
  release()
  assert.equal(await first, await second)
  assert.equal(await of('a'), await first)
  assert.equal(encodings(), 2)
  assert.deepEqual(sources, ['encoded', 'cached'])
})

test('tokens of pictures differ, those of one are equal also after its features were dropped', async () => {
  // Room for one picture of 6 vectors of 8 bytes.
  const { of, encodings, features } = setUp({ bytes_max: 50 })
  const first = await of('a')
  const other = await of('b')
  assert.equal(first.tokens[3], 7)
  const negative = (tokens: number[]) => tokens.filter((token) => token < 0)
  assert.equal(new Set([...negative(first.tokens), ...negative(other.tokens)]).size, 12)
  assert.equal(features.bytes, 48)
  assert.deepEqual((await of('a')).tokens, first.tokens)
  assert.equal(encodings(), 6)
})

test('an encoding stops after its tile when its last caller leaves, not before', async () => {
  const { of, encodings, calls, hold, release, held } = setUp()
  const [one, two] = [new AbortController(), new AbortController()]
  hold()
  const requests = [of('a', one.signal), of('a', two.signal)]
  for (const request of requests) request.catch(() => {})
  while (held.length === 0) await turn()
  one.abort()
  await assert.rejects(requests[0]!, { name: 'AbortError' })
  two.abort()
  await assert.rejects(requests[1]!, { name: 'AbortError' })
  release()
  while (!calls.includes('forget')) await turn()
  assert.equal(encodings(), 1)
  // Asked again, it is encoded as a whole.
  await of('a')
  assert.equal(encodings(), 3)
})

test('a caller who leaves takes nothing from another who waits for the same picture', async () => {
  const { of, hold, release, held } = setUp()
  const leaving = new AbortController()
  hold()
  const left = of('a', leaving.signal)
  const stays = of('a')
  while (held.length === 0) await turn()
  leaving.abort()
  await assert.rejects(left, { name: 'AbortError' })
  release()
  assert.equal((await stays).spans.length, 2)
})

test('accounts with many pictures do not keep others waiting, and may not wait without bound', async () => {
  const { of, hold, release, held } = setUp()
  hold()
  const many = Array.from({ length: 66 }, (_, index) => of(`many ${index}`, undefined, 'many'))
  await assert.rejects(many[65]!, { code: 'overloaded' })
  const order: string[] = []
  void many[2]!.then(() => order.push('many'))
  const other = of('other', undefined, 'other').then(() => order.push('other'))
  while (held.length === 0) await turn()
  release()
  await other
  await Promise.all(many.slice(0, 65))
  assert.equal(order[0], 'other')
})

test('a part with fewer positions than tokens advances the position by its positions alone', async () => {
  const { of } = setUp({ parts: [{ kind: 'text', tokens: [1] }, vectors(6, 3), { kind: 'text', tokens: [2] }] })
  const { tokens } = await of('a')
  assert.equal(positionsIn(tokens, 1), 1)
  assert.equal(positionsIn(tokens, 7), 4)
  assert.equal(positionsIn(tokens, 8), 5)
})
