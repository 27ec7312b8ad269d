// What a Dockerfile copies, and the same copies in a folder: tests run an image's command there, with what set-up has
// installed in this checkout. Commands of the Dockerfile are not run; docker or podman build it where they are.
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'
import dockerignore from '@balena/dockerignore'
import { until } from './client.ts'

/** A COPY: of paths in the build context, or in another stage (`from`). */
interface Copy {
  from: string | undefined
  paths: string[]
  to: string
}
export interface Stage {
  /** The lines of the stage, without comments and with continued lines joined. */
  text: string
  copies: Copy[]
}

/** The stages of a Dockerfile by name. The last one is named `last`. */
export function stagesOf(file: string): Record<string, Stage> {
  const lines = readFileSync(file, 'utf8')
    .replaceAll(/^#.*\n/gm, '')
    .replaceAll(/\\\n\s*/g, '')
  const stages = lines.split(/^(?=FROM )/m).slice(1)
  return Object.fromEntries(
    stages.map((text) => {
      const copies = [...text.matchAll(/^COPY (?:--from=(\S+) )?(.+)$/gm)].map(([, from, words]) => {
        const paths = words!.split(' ')
        return { from, paths, to: paths.pop()! }
      })
      return [/^FROM \S+ AS (\S+)/.exec(text)?.[1] ?? 'last', { text, copies }]
    }),
  )
}

/** The words of an instruction in JSON form, such as CMD. */
export const jsonOf = ({ text }: Stage, instruction: string): string[] =>
  JSON.parse(new RegExp(`^${instruction} .*?(\\[.*\\])$`, 'm').exec(text)![1]!)

/** The values of ENV lines. Paths in `folders` (`/data`, `/app`) are mapped into `at`. */
export function environmentOf({ text }: Stage, folders: string[], at: string): Record<string, string> {
  const pairs = [...text.matchAll(/^ENV (.+)$/gm)].flatMap(([, line]) => line!.split(/\s+/))
  return Object.fromEntries(
    pairs.map((pair) => {
      const [name, value] = pair.split('=') as [string, string]
      return [name, folders.some((each) => `${value}/`.startsWith(`${each}/`)) ? path.join(at, value) : value]
    }),
  )
}

/** Fails on a path that does not exist in the build context or that .dockerignore excludes. */
export function assertInContext(name: string, context: string): void {
  assert.ok(!ignoredIn(context)(name), `COPY ${name}: .dockerignore excludes it`)
  assert.ok(existsSync(path.join(context, name)), `COPY ${name}: there is no such path in ${context}`)
}

/**
 * Copies into `folder` what a stage copies into its `/app`. `others` are the folders of other stages; copies from a
 * stage without one (a registry image) are skipped.
 */
export function copyStage(stage: Stage, folder: string, context: string, others: Record<string, string> = {}): void {
  const ignored = ignoredIn(context)
  mkdirSync(folder, { recursive: true })
  for (const { from, paths, to } of stage.copies)
    for (const name of paths) {
      if (from && !others[from]) continue
      if (!from) assertInContext(name, context)
      assert.ok(paths.length === 1 || to.endsWith('/'), `COPY of several paths needs a slash at the end of ${to}`)
      const source = from ? path.join(others[from]!, path.posix.relative('/app', name)) : path.join(context, name)
      const isFolder = statSync(source).isDirectory()
      const target = path.join(folder, to.endsWith('/') && !isFolder ? path.join(to, path.basename(name)) : to)
      if (from) linkTree(source, target)
      else cpSync(source, target, { recursive: true, filter: (each) => !ignored(path.relative(context, each)) })
    }
}

/** Copies a tree as hard links where possible: what set-up installs is large. */
export function linkTree(from: string, to: string): void {
  mkdirSync(path.dirname(to), { recursive: true })
  for (const how of ['-al', '-a'])
    if (spawnSync('cp', [how, '--force', '--no-target-directory', from, to], { stdio: 'ignore' }).status === 0) return
  throw new Error(`${from} could not be copied to ${to}`)
}

function ignoredIn(context: string): (name: string) => boolean {
  // Its types are wrong about the default export: it is a function.
  const rules = (dockerignore as unknown as typeof dockerignore.default)().add(
    readFileSync(path.join(context, '.dockerignore'), 'utf8'),
  )
  return (name) => name !== '' && rules.ignores(path.posix.normalize(name))
}

/** docker or podman, if one of them can build images here. */
export const containerTool = () =>
  ['docker', 'podman'].find((tool) => spawnSync(tool, ['info'], { stdio: 'ignore', timeout: 20_000 }).status === 0)

/** Builds an image, runs it with a read-only root file system and waits until `route` answers with 200. */
export async function buildAndRun(tool: string, file: string, context: string, route: string): Promise<void> {
  const call = (...args: string[]) =>
    execFileSync(tool, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }).trim()
  const image = call('build', '--quiet', '--file', file, context)
  const container = call('run', '--detach', '--read-only', '--tmpfs=/tmp', '--publish=127.0.0.1::8000', image)
  try {
    const address = call('port', container, '8000').split('\n')[0]
    await until(`the container to answer ${route}`, async () => {
      const response = await fetch(`http://${address}${route}`).catch(() => undefined)
      return response?.ok
    })
  } finally {
    call('rm', '--force', '--volumes', container)
    call('rmi', image)
  }
}
