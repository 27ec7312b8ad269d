// What can be asked for by name: a base model, or an adapter on one.
import type { Model } from './llama/model.ts'
import type { Pointer } from './llama/structs.ts'

export type ServedModel = {
  name: string
  path: string
  /** Unix seconds. */
  created: number
  model: Model
  /** Null for the base itself. */
  adapter: Pointer
  /** The base's name, of an adapter; null for a base. */
  base_name: string | null
  /** Requests that are using it, from validation to the last byte. Its memory is freed at 0 only. */
  users: number
  /** Aborted when an unload will wait no longer for the requests. */
  closing: AbortController
}
