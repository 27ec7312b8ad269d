// Runs a command and ends the process with its exit status.
import { CommanderError } from 'commander'
import type { LocalCommands } from './local/commands.ts'
import { createProgram, withDefaults } from './program.ts'
import { asCommandError, exitStatus } from './support/errors.ts'
import { connectedTo } from './support/service.ts'
import { clean } from './support/text.ts'

export async function run(args: string[], local: LocalCommands | undefined): Promise<void> {
  // A reader that has enough, as `head`, ends the command quietly.
  for (const stream of [process.stdout, process.stderr])
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EPIPE') process.exit()
      throw error
    })
  try {
    const program = createProgram(local)
    if (args.length === 0) return program.outputHelp()
    await program.parseAsync(withDefaults(program, args), { from: 'user' })
  } catch (error) {
    process.exitCode = explain(error)
  }
}

/** Prints what went wrong, and returns the exit status. Only defects of the program show where they happened. */
function explain(error: unknown): number {
  // commander has printed help or version.
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : exitStatus.usage
  const commandError = asCommandError(error, connectedTo())
  if (!commandError) {
    console.error((error as Error)?.stack ?? error)
    return exitStatus.failed
  }
  // A service may be anybody's.
  if (commandError.message) console.error(clean(commandError.message))
  return commandError.status
}
