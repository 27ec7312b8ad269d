// The comparison with the training for replicas on other machines: they score the probe rows, this service judges.

import type { Artifacts } from '../../../platform/storage/objects/index.ts'
import type { TunedModels } from '../../models/index.ts'
import type { Target } from '../requests/replica.ts'
import { rowsToScore } from './adapter-verification.ts'
import { compare, type Probe, readProbe } from './compare.ts'

/** Log-probabilities of the targets of each row. */
type ScoredRows = { logprobs: (number | null)[] }[]

export interface ProbeCheck {
  /**
   * The rows that a replica of this target scores. None for whole weights: what these were made from is not with the
   * replica, which has compared the hashes of all that it loads.
   */
  rows(target: Target): Promise<ReturnType<typeof rowsToScore>>
  /** Why the scores are not those of the adapter and its base; null if they are. */
  judge(target: Target, tuned: ScoredRows, origin: ScoredRows): Promise<string | null>
}

export function createProbeCheck(
  models: Pick<TunedModels, 'expected'>,
  artifacts: Pick<Artifacts, 'ensureLocal'>,
): ProbeCheck {
  async function probeOf({ base, adapter }: Target): Promise<Probe['rows']> {
    if (!adapter) return []
    await artifacts.ensureLocal(adapter.gguf)
    const probe = (await models.expected(adapter.id))?.probe
    return probe?.from.base.id === base.id && !probe.from.adapter ? (await readProbe(probe.file)).rows : []
  }

  return {
    rows: async (target) => rowsToScore({ rows: await probeOf(target) }),
    async judge(target, tuned, origin) {
      const rows = await probeOf(target)
      const complete = (scored: ScoredRows) =>
        scored.length === rows.length && rows.every((row, at) => scored[at]!.logprobs.length === row.targets.length)
      if (!complete(tuned) || !complete(origin)) return 'Its scores are not of the rows of the training.'
      // What makes tokens of conversations was compared when the model was made.
      const scores = (scored: ScoredRows) => ({
        rows: scored.map(({ logprobs }) => ({ prompt: null, logprobs, ends: true })),
        least_ms: 0,
      })
      return compare({ rows }, scores(tuned), scores(origin)).problem
    },
  }
}
