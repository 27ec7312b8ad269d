// The catalogue of base models, and what follows from a row of it alone.
import type { Model } from '../../../contract/hub.ts'
import catalogue from './catalogue.json' with { type: 'json' }
import type { Shape } from './memory.ts'

/** A base of the catalogue. */
interface Entry {
  id: string
  name: string
  category: string
  family: string
  tasks: string[]
  parameters: number
  active_parameters?: number
  context_length: number
  license: string
  license_url?: string
  gated?: boolean
  /** What its download takes; by default two bytes a weight. */
  size_mb?: number
  shape?: Shape
  description: string
}
export const entries: readonly Entry[] = catalogue.models
export const featuredIds = catalogue.featured
export const sizeOf = ({ size_mb, parameters }: Entry) => size_mb ?? Math.round((2 * parameters) / 1e6)

/**
 * Disk of a download: the weights, as much again for the GGUF file, and, where it has fewer than two bytes a weight,
 * the whole weights that are written of its quantized ones.
 */
export function downloadBytes(entry: Entry): number {
  const bytes = sizeOf(entry) * 1e6
  const whole_bytes = 2 * entry.parameters
  return 2 * bytes + (bytes < 0.9 * whole_bytes ? whole_bytes : 0)
}

/** The largest count of weights of each class of sizes, in billions. */
const sizes = { '1b': 1, '4b': 5, '9b': 10, '30b': 40, larger: Number.POSITIVE_INFINITY } as const
export const sizeClass = (parameters: number) =>
  (Object.entries(sizes) as [Model['size'], number][]).find(([, most]) => parameters <= most * 1e9)![0]

export const categories = { text: 'language', vision: 'multimodal', embedding: 'embedding' } as const
/** What a base that the catalogue does not have is asked for. */
export const tasks = { text: ['chat'], vision: ['chat', 'pictures'], embedding: ['embeddings'] } as const
export const kinds = { language: 'text', code: 'text', multimodal: 'vision', embedding: 'embedding' } as const
