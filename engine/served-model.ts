// What can be asked for by name: a base model, or an adapter on one.
import type { Adapter } from './adapters.ts'
import type { Model } from './llama/model.ts'

export type ServedModel = {
  name: string
  path: string
  /** Unix seconds. */
  created: number
  model: Model
  kind: 'text' | 'embedding'
  /** Null for the base itself. */
  adapter: Adapter | null
  /** The base's name, of an adapter; null for a base. */
  base_name: string | null
  /** Whether the first part of its embeddings is an embedding too (Matryoshka representation learning). */
  matryoshka: boolean
  /** Requests that are using it, from validation to the last byte. Its memory is freed at 0 only. */
  users: number
  used_at_ms: number
  /** Aborted when an unload will wait no longer for the requests. */
  closing: AbortController
}
