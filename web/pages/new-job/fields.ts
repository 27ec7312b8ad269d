// What the page knows of hyperparameters: the shape of generated/hyperparameters.ts, and how values are read and
// judged.
import { formatCount, formatNumber } from '../../lib/format.ts'

export interface HyperparameterInfo {
  name: string
  description: string
  type: 'integer' | 'number' | 'boolean' | 'string' | 'choice' | 'list'
  choices?: readonly string[]
  minimum?: number
  /** Must be greater than this. */
  above?: number
  maximum?: number
  /** Most entries of a list. */
  most?: number
  default?: unknown
  /** The default in words, where it is computed or its value says too little. */
  default_words?: string
}

export interface HyperparameterGroup {
  name: GroupName
  entries: readonly HyperparameterInfo[]
}

export const groupNames = ['method_options', 'lora_config', 'training_config', 'evaluation_config'] as const
export type GroupName = (typeof groupNames)[number]
export type Objective = 'sft' | 'dpo' | 'kto' | 'reinforcement'

/** A setting's number, whole ones in full. */
export const numberOf = (value: number): string =>
  Number.isInteger(value) ? formatCount(value) : formatNumber(value, 10)

/** `From 1 to 50`, `Above 0, at most 0.1`; empty where there is no range. */
export function rangeOf({ type, minimum, above, maximum, most, choices }: HyperparameterInfo): string {
  if (choices) return choices.join(', ')
  if (type === 'list') return most === undefined ? '' : `At most ${numberOf(most)} entries`
  if (above !== undefined)
    return `Above ${numberOf(above)}${maximum === undefined ? '' : `, at most ${numberOf(maximum)}`}`
  if (minimum !== undefined && maximum !== undefined) return `From ${numberOf(minimum)} to ${numberOf(maximum)}`
  return ''
}

export const defaultOf = ({ default: value, default_words }: HyperparameterInfo): string =>
  default_words ?? (typeof value === 'number' ? numberOf(value) : String(value))

/** What is wrong with a value, before the service is asked. */
export function problemOf(info: HyperparameterInfo, value: unknown): string | undefined {
  if (value === undefined || ['boolean', 'string', 'choice'].includes(info.type)) return undefined
  if (info.type === 'list') {
    const { length } = value as unknown[]
    return info.most !== undefined && length > info.most ? `At most ${info.most}; these are ${length}.` : undefined
  }
  const number = value as number
  const { minimum, above, maximum } = info
  const wrong =
    (minimum !== undefined && number < minimum) ||
    (above !== undefined && number <= above) ||
    (maximum !== undefined && number > maximum)
  if (wrong) return `Must be ${rangeOf(info).replace(/^./, (letter) => letter.toLowerCase())}.`
  return info.type === 'integer' && !Number.isInteger(number) ? 'Must be a whole number.' : undefined
}

/**
 * Which objectives a setting is for, as its description begins: "For `dpo` and `kto`: …". All where it does not say.
 */
export function isFor({ description }: HyperparameterInfo, objective: Objective): boolean {
  const begin = /^For ([^:]+):/.exec(description)?.[1]
  return begin === undefined || begin.includes(`\`${objective}\``)
}

/** The description of a setting that is shown for its one objective alone: without the name of that. */
export const shownDescription = ({ description }: HyperparameterInfo): string =>
  description.replace(/^For `\w+`: (.)/, (_, first: string) => first.toUpperCase())
