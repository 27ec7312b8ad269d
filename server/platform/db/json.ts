// JSON columns: the schema names the type of each, and `fromJson` reads it.
import { parseJson } from '../../../lib/json.ts'

declare const holds: unique symbol

/** JSON text of a T, as the service wrote it. */
export type Json<T> = string & { readonly [holds]?: T }

export function fromJson<T>(text: Json<T>): T
export function fromJson<T>(text: Json<T> | null): T | null
export function fromJson(text: string | null): unknown {
  return text === null ? null : JSON.parse(text)
}

/** The same where a seed may have more digits than a number holds. */
export const fromJsonWithSeeds = <T>(text: Json<T>): T => parseJson(text) as T
