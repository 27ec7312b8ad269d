// Runs the steps of a Dockerfile without a container. Each stage is a folder, and `/app` is the folder's `app`. As with
// `docker build`, a missing or ignored file and a failed command throw.
//
// Skipped and returned as such: steps that need root or change the machine (`apt-get`, `install --owner`), and copies
// from registry images. Commands also see this machine's files, so a system package that a Dockerfile does not install
// is not noticed here.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import path from 'node:path'
import dockerignore from '@balena/dockerignore'
import {
  type Arg,
  type Copy,
  DockerfileParser,
  type Env,
  type From,
  type Healthcheck,
  type Instruction,
  type JSONInstruction,
} from 'dockerfile-ast'

export interface Stage {
  name: string
  folder: string
  workdir: string
  env: Record<string, string>
  user: string
  command: string[]
  healthcheck: string[]
  volumes: string[]
}
interface Options {
  file: string
  context: string
  /** Parent of the stages' folders. */
  folder: string
  args?: Record<string, string>
  /** Called before a stage's first step, to install what its steps would download. */
  prepare?(stage: Stage): void
}

const needsRoot = /^(apt-get |install .*--owner)/

/** Builds the last stage and those it needs; returns it and the skipped steps. */
export function buildOutside({ file, context, folder, args = {}, prepare }: Options): {
  stage: Stage
  skipped: string[]
} {
  const instructions = DockerfileParser.parse(readFileSync(file, 'utf8')).getInstructions()
  const firstFrom = instructions.findIndex((each) => each.getKeyword() === 'FROM')
  const global = Object.fromEntries(instructions.slice(0, firstFrom).map((each) => argumentOf(each as Arg, args)))
  const stages: { from: string; name: string; steps: Instruction[] }[] = []
  for (const each of instructions.slice(firstFrom)) {
    if (each.getKeyword() !== 'FROM') stages.at(-1)!.steps.push(each)
    else
      stages.push({
        from: expand((each as From).getImage()!, global),
        name: (each as From).getBuildStage() ?? 'last',
        steps: [],
      })
  }
  const leftOut: string[] = []
  const built = new Map<string, Stage>()
  const ignored = ignoredIn(context)

  function build(name: string): Stage {
    const finished = built.get(name)
    if (finished) return finished
    const { from, steps } = stages.find((each) => each.name === name)!
    const base = stages.some((each) => each.name === from) ? build(from) : undefined
    const stage: Stage = {
      ...(base ?? { workdir: '/', env: {}, user: '', command: [], healthcheck: [], volumes: [] }),
      ...{ name, folder: path.join(folder, name) },
      env: { ...base?.env },
    }
    mkdirSync(stage.folder, { recursive: true })
    if (base) cpSync(base.folder, stage.folder, { recursive: true, verbatimSymlinks: true })
    prepare?.(stage)
    const seen: Record<string, string> = {}
    for (const step of steps) run(stage, step, seen)
    built.set(name, stage)
    return stage
  }

  function run(stage: Stage, step: Instruction, seen: Record<string, string>): void {
    const text = step.getRawArgumentsContent() ?? ''
    const strings = () => (step as JSONInstruction).getJSONStrings().map((each) => each.getJSONValue())
    const within = (name: string) => path.join(stage.folder, path.posix.resolve(stage.workdir, name))
    switch (step.getKeyword()) {
      case 'ARG': {
        const [name, value] = argumentOf(step as Arg, args)
        seen[name] = value === '' ? (global[name] ?? '') : value
        return
      }
      case 'ENV':
        for (const each of (step as Env).getProperties()) stage.env[each.getName()] = each.getValue() ?? ''
        return
      case 'WORKDIR':
        stage.workdir = path.posix.resolve(stage.workdir, text)
        mkdirSync(within('.'), { recursive: true })
        return
      case 'USER':
        stage.user = text
        return
      case 'CMD':
        stage.command = strings()
        return
      case 'VOLUME':
        stage.volumes.push(...strings())
        for (const each of strings()) mkdirSync(within(each), { recursive: true })
        return
      case 'HEALTHCHECK': {
        // `CMD ["…"]` after the options.
        stage.healthcheck = JSON.parse(text.slice(text.indexOf('[')))
        if ((step as Healthcheck).getSubcommand()?.getValue() !== 'CMD')
          throw new Error('a health check that is not a command')
        return
      }
      case 'COPY':
        copy(step as Copy, within)
        return
      case 'RUN': {
        const commands = text.replaceAll(/\\\n\s*/g, '')
        if (needsRoot.test(commands)) {
          leftOut.push(`RUN ${commands}`)
          return
        }
        // This process's Node stands in for the image's.
        const env = {
          ...process.env,
          PATH: `${path.dirname(process.execPath)}:${process.env.PATH}`,
          ...seen,
          ...stageEnv(stage),
        }
        const { status, stdout, stderr } = spawnSync('sh', ['-ec', commands], {
          cwd: within('.'),
          env,
          encoding: 'utf8',
        })
        if (status !== 0) throw new Error(`RUN ${commands} failed with ${status}:\n${stdout}${stderr}`)
        return
      }
      case 'EXPOSE':
      case 'STOPSIGNAL':
        return
      case 'ENTRYPOINT':
        // tini is the container's init process; not needed here.
        if (strings().join(' ') !== 'tini --') break
        leftOut.push(`ENTRYPOINT ${text}`)
        return
    }
    throw new Error(`${step.getKeyword()} is not supported: add it to tests/support/dockerfile.ts`)
  }

  /** Whether a stage is only a registry image. */
  function isFetched(name: string): boolean {
    const stage = stages.find((each) => each.name === name)
    return !stage || (stage.steps.length === 0 && !stages.some((each) => each.name === stage.from))
  }

  function copy(step: Copy, within: (name: string) => string): void {
    const from = step
      .getFlags()
      .find((flag) => flag.getName() === 'from')
      ?.getValue()
    const names = step.getArguments().map((each) => each.getValue())
    const to = names.pop()!
    if (names.length > 1 && !to.endsWith('/'))
      throw new Error(`COPY of several files needs a slash at the end of ${to}`)
    if (from && isFetched(from)) {
      leftOut.push(`COPY ${step.getRawArgumentsContent()}`)
      return
    }
    const source = from ? build(from).folder : context
    for (const name of names) {
      const at = path.join(source, name)
      if (!existsSync(at))
        throw new Error(`COPY ${name}: there is no such file in ${from ? `the stage ${from}` : 'the build context'}`)
      if (!from && ignored(name)) throw new Error(`COPY ${name}: .dockerignore keeps it out`)
      const target =
        to.endsWith('/') && !statSync(at).isDirectory() ? path.join(within(to), path.basename(name)) : within(to)
      if (from && statSync(at).isDirectory()) linkTree(at, target)
      else
        cpSync(at, target, {
          recursive: true,
          verbatimSymlinks: true,
          filter: (file) => from !== undefined || !ignored(path.relative(context, file)),
        })
    }
  }

  return { stage: build(stages.at(-1)!.name), skipped: leftOut }
}

/** Copies a tree as hard links where possible, as stages are large. */
export function linkTree(from: string, to: string): void {
  mkdirSync(to, { recursive: true })
  for (const how of ['-al', '-a'])
    if (spawnSync('cp', [how, '--force', '--no-target-directory', from, to], { stdio: 'ignore' }).status === 0) return
  throw new Error(`${from} could not be copied to ${to}`)
}

/** The environment of a stage's processes, with the image's paths mapped into the stage's folder. */
export function stageEnv({ env, folder, workdir, volumes }: Stage): Record<string, string> {
  const inImage = (value: string) =>
    [workdir, ...volumes].some((each) => each !== '/' && (value === each || value.startsWith(`${each}/`)))
  return Object.fromEntries(
    Object.entries(env).map(([name, value]) => [name, inImage(value) ? path.join(folder, value) : value]),
  )
}

function argumentOf(step: Arg, args: Record<string, string>): [string, string] {
  const property = step.getProperty()!
  return [property.getName(), args[property.getName()] ?? property.getValue() ?? '']
}

const expand = (text: string, values: Record<string, string>) =>
  text.replaceAll(/\$\{(\w+)\}/g, (_, name) => values[name] ?? '')

function ignoredIn(context: string): (name: string) => boolean {
  const file = path.join(context, '.dockerignore')
  // Its types are wrong about the default export: it is a function.
  const rules = (dockerignore as unknown as typeof dockerignore.default)().add(
    existsSync(file) ? readFileSync(file, 'utf8') : '',
  )
  return (name) => name !== '' && rules.ignores(path.posix.normalize(name).replace(/\/$/, ''))
}
