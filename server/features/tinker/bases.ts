// The bases by the names that clients of Tinker's API send, and what can be done with each.
import { ApiError } from '../../../contract/errors.ts'
import type { Hub } from '../hub/index.ts'

export interface Bases {
  /** The id of the base that a name stands for. Throws model_not_found. */
  resolve(name: string): string
  /** What `get_server_capabilities` tells: the bases on this machine that write text. */
  list(): { model_name: string; max_context_length: number; trainable: boolean; sampleable: boolean }[]
  /** Names of the layers that an adapter of this kind changes. Throws model_not_available, invalid_request. */
  targetModules(id: string, parts: { train_attn: boolean; train_mlp: boolean }): string[]
}

/** Layers of attention by the names of all families that the converters know; others are of the MLP. */
const attention = /(^|_)(q|k|v|o|qkv|kv|out|query|key|value)(_|$)|attn|attention|Wqkv|c_attn/

export function createBases(hub: Hub, trains: boolean): Bases {
  const local = () =>
    hub.list().filter(({ id, category, weights }) => category !== 'embedding' && weights.available && hub.has(id))

  function resolve(name: string): string {
    // `NAME:VARIANT`: the variants of Tinker's own models are others of their context.
    const plain = name.split(':')[0]!
    const mapped = hub.mapped(plain)
    const ids = local().map(({ id }) => id)
    if (ids.includes(mapped)) return mapped
    const same = (id: string) => id.toLowerCase() === mapped.toLowerCase()
    const short = (id: string) => id.split('/').at(-1)!.toLowerCase() === mapped.toLowerCase()
    const found = ids.find(same) ?? (ids.filter(short).length === 1 ? ids.find(short) : undefined)
    if (found) return found
    // A base of the catalogue whose weights are not on this machine: the hub says how they get here.
    if (hub.has(mapped)) hub.local(mapped)
    throw new ApiError(
      'model_not_found',
      `There is no base '${name.slice(0, 200)}' here. There are: ${ids.join(', ') || 'none'}. The operator adds ` +
        'bases from the hub, or maps names to them.',
      { param: 'base_model' },
    )
  }

  function isTrainable(id: string): boolean {
    if (!trains || hub.localOrUndefined(id)?.merges_adapters) return false
    try {
      hub.trainable(id)
      return true
    } catch {
      return false
    }
  }

  return {
    resolve,
    list: () =>
      local().map(({ id, context_length }) => ({
        model_name: id,
        max_context_length: context_length,
        trainable: isTrainable(id),
        sampleable: true,
      })),
    targetModules(id, { train_attn, train_mlp }) {
      if (!trains)
        throw new ApiError(
          'parameter_not_supported',
          'Trainings run in a Ray cluster here; the runs of this API need a trainer on the machine of the service.',
        )
      const base = hub.trainable(id)
      if (base.merges_adapters)
        throw new ApiError(
          'parameter_not_supported',
          `'${id}' cannot be trained by this API: its engine loads no adapters, so it could not be sampled from.`,
        )
      const all = hub.linearModules(base)
      const chosen = all.filter((name) => (attention.test(name) ? train_attn : train_mlp))
      if (chosen.length > 0) return chosen
      throw new ApiError(
        'invalid_request',
        `No layers of '${id}' are left to train: set train_attn or train_mlp. The output layer alone (train_unembed) ` +
          'cannot have an adapter here.',
      )
    },
  }
}
