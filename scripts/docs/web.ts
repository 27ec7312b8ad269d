// web/pages/new-job/generated/hyperparameters.ts: what the page of a new job says of each hyperparameter. The page does
// not import the contract itself, which would bring its validation library along.
import { z } from 'zod'
import {
  entriesOf,
  type GroupName,
  type Hyperparameter,
  hyperparameters,
  method,
} from '../../contract/hyperparameters.ts'
import { compactJson } from './json.ts'

interface Schema {
  type?: string
  enum?: string[]
  items?: Schema
  minimum?: number
  maximum?: number
  exclusiveMinimum?: number
  maxItems?: number
}

const note = '// Written by `npm run docs` from contract/hyperparameters.ts. Do not edit.\n'

/** The modules of the dashboard that are made from the contract, by their path. */
export const webFiles = (): Record<string, string> => ({
  'web/pages/new-job/generated/hyperparameters.ts':
    `${note}import type { HyperparameterGroup, HyperparameterInfo } from '../fields.ts'\n\n` +
    `export const method: HyperparameterInfo = ${compactJson(infoOf('method', method), 1000)}\n` +
    `export const groups: readonly HyperparameterGroup[] = ${compactJson(
      Object.keys(hyperparameters).map((group) => ({
        name: group,
        entries: entriesOf(group as GroupName).flatMap(([name, entry]) =>
          entry.request && !entry.without_field ? [infoOf(name, entry)] : [],
        ),
      })),
      1000,
    )}`,
})

function infoOf(name: string, entry: Hyperparameter) {
  const schema = z.toJSONSchema(entry.request!, { unrepresentable: 'any' }) as Schema
  const { minimum, maximum, exclusiveMinimum, maxItems } = schema
  const words = entry.computed ?? entry.default_words
  return {
    name,
    description: entry.description,
    type: schema.enum ? 'choice' : schema.type === 'array' ? 'list' : schema.type,
    ...(schema.enum && { choices: schema.enum }),
    ...(minimum !== undefined && { minimum }),
    ...(exclusiveMinimum !== undefined && { above: exclusiveMinimum }),
    ...(maximum !== undefined && { maximum }),
    ...(maxItems !== undefined && { most: maxItems }),
    ...(words === undefined ? { default: entry.default } : { default_words: words }),
  }
}
