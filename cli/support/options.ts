// Commands with the options that all of them take.
import { Command } from 'commander'
import { UsageError } from './errors.ts'
import { typed } from './invocation.ts'

/** Options of every command. */
export interface GlobalOptions {
  /** One JSON value on stdout, or a line of JSON for each event. */
  json?: boolean
  url?: string | undefined
  key?: string | undefined
  profile?: string | undefined
}

/** A command whose mistakes of usage are `UsageError`s that say what to do. */
export class Program extends Command {
  override createCommand(name?: string): Program {
    return new Program(name)
  }

  /** What commander calls for each mistake. */
  override error(message: string, { code }: { code?: string } = {}): never {
    throw new UsageError(explain(wordsOf(this), message.replace(/^error: /, ''), code))
  }
}

/** The words of a command behind the program's name. */
export function wordsOf(command: Command): string {
  return command.parent ? `${wordsOf(command.parent)} ${command.name()}`.trim() : ''
}

function explain(words: string, message: string, code: string | undefined): string {
  const [first, suggestion] = message.split('\n') as [string, string?]
  const similar = suggestion?.replace(/^\(Did you mean (.*)\?\)$/, " Did you mean '$1'?") ?? ''
  const help = `'${typed(`${words ? `${words} ` : ''}--help`)}'`
  const quoted = /'([^']*)'/.exec(first)?.[1] ?? ''
  if (code === 'commander.unknownCommand')
    return `'${`${words} ${quoted}`.trim()}' is not a command.${similar} ${help} lists the commands.`
  if (code === 'commander.missingArgument')
    return `'${typed(words)}': its ${quoted} is missing. ${help} shows how it is used.`
  if (code === 'commander.unknownOption')
    return `'${quoted}' is not an option of '${typed(words).trim()}'.${similar} ${help} lists them.`
  return `${first[0]!.toUpperCase()}${first.slice(1).replace(/\.$/, '')}. ${help} shows how it is used.`
}

/** What a command runs: its arguments, its options with those of all commands, and its own name. */
export type Run = (...args: never[]) => Promise<void> | void

/** Lets a command run something. `lazy`: what `load` imports, so that other commands start without it. */
export function runs(command: Command, load: Run | (() => Promise<Run>), options: { lazy?: boolean } = {}): Command {
  return command.action(async (...args: unknown[]) => {
    const self = args.pop() as Command
    args.pop()
    const run = options.lazy ? await (load as () => Promise<Run>)() : (load as Run)
    await run(...([...args, self.optsWithGlobals(), self.name()] as never[]))
  })
}

/** A whole number of an option. Throws a UsageError. */
export function wholeNumber(option: string, minimum: number, maximum = Number.MAX_SAFE_INTEGER) {
  return (text: string): number => {
    if (/^\d+$/.test(text) && Number(text) >= minimum && Number(text) <= maximum) return Number(text)
    throw new UsageError(
      `${option} is a whole number from ${minimum}${maximum < Number.MAX_SAFE_INTEGER ? ` to ${maximum}` : ' on'}, ` +
        `not '${text}'.`,
    )
  }
}

/** A number of an option. Throws a UsageError. */
export function decimal(option: string) {
  return (text: string): number => {
    const value = Number(text)
    if (text.trim() !== '' && Number.isFinite(value) && value >= 0) return value
    throw new UsageError(`${option} is a number that is not negative, such as 0.0002, not '${text}'.`)
  }
}
