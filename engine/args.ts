// The command line.
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { type Address, parseAddress } from './listen.ts'

export type Args = {
  listen: Address
  models: { name: string; path: string }[]
  threads: number
  lib: string
  parent_pipe: boolean
  slots: number
  speculation: boolean
  eight_bits: boolean
}

export const usage =
  'node engine/main.ts --listen unix:/path.sock | HOST:PORT [--model NAME=FILE.gguf]... [--threads N] [--lib DIR] [--parent-pipe] [--slots N] [--no-speculation] [--no-eight-bits]'

const slotsDefault = 32

/** Throws an Error that says what is wrong. */
export function parseCommandLine(argv: string[]): Args {
  const { values } = parseArgs({
    args: argv,
    options: {
      listen: { type: 'string' },
      model: { type: 'string', multiple: true, default: [] },
      threads: { type: 'string' },
      lib: { type: 'string' },
      'parent-pipe': { type: 'boolean', default: false },
      slots: { type: 'string' },
      'no-speculation': { type: 'boolean', default: false },
      'no-eight-bits': { type: 'boolean', default: false },
    },
  })
  if (!values.listen) throw new Error('--listen is missing.')
  const cores = availableParallelism()
  return {
    listen: parseAddress(values.listen),
    models: values.model.map(parseModel),
    // More threads than cores hang the library's spinning barriers.
    threads: Math.min(positive('--threads', values.threads, cores), cores),
    lib: values.lib ?? fileURLToPath(new URL('../.local/llama/lib', import.meta.url)),
    parent_pipe: values['parent-pipe'],
    slots: Math.min(positive('--slots', values.slots, slotsDefault), 64),
    speculation: !values['no-speculation'],
    eight_bits: !values['no-eight-bits'],
  }
}

function parseModel(text: string): { name: string; path: string } {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new Error(`--model takes NAME=FILE.gguf, not '${text}'.`)
  return { name: text.slice(0, at), path: text.slice(at + 1) }
}

function positive(option: string, text: string | undefined, fallback: number): number {
  if (text === undefined) return fallback
  const number = Number(text)
  if (!Number.isInteger(number) || number < 1) throw new Error(`${option} takes a whole number from 1 on, not '${text}'.`)
  return number
}
