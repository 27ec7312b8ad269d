// Verifies that an engine serves the weights that were asked for, before it takes traffic: by their hashes, and by the
// probabilities that the trainer kept.

import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { ApiError } from '../../../../contract/errors.ts'
import { headerText } from '../../../../lib/header-text.ts'
import { hashFile } from '../../../platform/storage/durable-files.ts'
import type { Projector } from '../../hub/index.ts'
import type { TunedModels } from '../../models/index.ts'
import type { EngineClient } from '../engine/client.ts'
import { readAll } from '../http-client/client.ts'
import { projectorOf, type Target } from '../requests/replica.ts'
import { createScoring, rowsToScore } from './adapter-verification.ts'
import { compare, readProbe } from './compare.ts'

const hashPoll_ms = 50
/** Hex digits of a hash in the header x-weights. */
const shownDigits = 16
/** A hash as the header x-weights shows it. */
export const shownHash = (sha256: string) => `sha256:${sha256.slice(0, shownDigits)}`

/** The engine does not serve what it was asked to serve. */
class WrongWeights extends ApiError {
  constructor(message: string) {
    super('engine_failed', message)
  }
}

/**
 * Loads a target into an engine and verifies it. Resolves with the header x-weights that each of its answers must have.
 * Throws WrongWeights, or what loading throws.
 */
export type VerifyReplica = (engine: EngineClient, target: Target, signal: AbortSignal) => Promise<string>

export function createReplicaVerification(models: Pick<TunedModels, 'expected'>): VerifyReplica {
  /** Hashes of files of bases, by what tells whether a file has changed. */
  const verified = new Map<string, Promise<string>>()

  async function hashOf(file: string): Promise<string> {
    const { dev, ino, size, mtimeNs } = await stat(file, { bigint: true })
    const stamp = `${dev} ${ino} ${size} ${mtimeNs}`
    const existing = verified.get(stamp)
    if (existing !== undefined) return existing
    const hash = hashFile(file)
    verified.set(stamp, hash)
    hash.catch(() => verified.delete(stamp))
    return hash
  }

  /** The SHA-256 of the weights under this id: recorded when the model was made; of a base as its file is now. */
  const expectedHash = async ({ id, gguf }: { id: string; gguf: string }) =>
    (await models.expected(id))?.sha256 ?? (await hashOf(gguf))

  /** Without the library for pictures the engine reads text only, and says so where it gets one. */
  const sightHeaders = (projector: Projector | null) =>
    projector ? [`; projector=${shownHash(projector.sha256)}`, ''] : ['']

  /** The headers that are right: of the files, or of the engine's own 8-bit copy of the base. */
  async function expectedHeaders(target: Target): Promise<string[]> {
    const { base, adapter } = target
    const gguf = base.gguf!
    const copy = `${gguf.replace(/\.gguf$/, '')}.eight-bits.gguf`
    const bases = [shownHash(await expectedHash({ id: base.id, gguf }))]
    if (existsSync(copy)) bases.push(`${shownHash(await hashOf(copy))}; eight_bits=1`)
    const sights = sightHeaders(projectorOf(target))
    const end = adapter ? `; adapter=${headerText(adapter.id)} ${shownHash(await expectedHash(adapter))}` : ''
    return bases.flatMap((hash) => sights.map((sight) => `base=${headerText(base.id)} ${hash}${sight}${end}`))
  }

  /** The header of an answer, once the engine has read the files that it has in memory. */
  async function servedHeader(engine: EngineClient, target: Target, signal: AbortSignal): Promise<string> {
    const ask = async (path: string, fields: object) => {
      const body = (model: string) => JSON.stringify({ model, ...fields })
      const { response } = await engine.post(target, path, body, {}, signal)
      const text = (await readAll(response)).toString('utf8')
      return { status: response.status, header: response.headers['x-weights'], text }
    }
    for (;;) {
      let answer = await ask('/v1/completions', { prompt: 'a', max_tokens: 1 })
      if (answer.status === 400) answer = await ask('/v1/embeddings', { input: ['a'] })
      if (answer.status !== 200 || !answer.header)
        throw new WrongWeights(`The engine does not answer with the model: ${answer.text.slice(0, 300)}`)
      if (!answer.header.includes('sha256:pending')) return answer.header
      await sleep(hashPoll_ms, undefined, { signal })
    }
  }

  async function verifyProbe(engine: EngineClient, target: Target, id: string, signal: AbortSignal): Promise<void> {
    const probe = (await models.expected(id))?.probe
    if (!probe) return
    const kept = await readProbe(probe.file)
    if (kept.rows.length === 0) return
    const rows = rowsToScore(kept)
    const score = createScoring(engine)
    const { problem } = compare(kept, await score(target, rows, { signal }), await score(probe.from, rows, { signal }))
    // A full model was made from other whole weights, which nobody asked this engine for.
    if (probe.from.base.id !== target.base.id) await engine.unload({ base: probe.from.base })
    if (problem) throw new WrongWeights(`The engine does not answer as the model '${id}' does. ${problem}`)
  }

  return async (engine, target, signal) => {
    await engine.load(target)
    const [header, expected] = await Promise.all([servedHeader(engine, target, signal), expectedHeaders(target)])
    if (!expected.includes(header))
      throw new WrongWeights(
        `The engine has other weights than those asked for: ${header} instead of ${expected.join(' or ')}. The file ` +
          'was changed after the model was made: restore it from a backup.',
      )
    await verifyProbe(engine, target, (target.adapter ?? target.base).id, signal)
    return header
  }
}
