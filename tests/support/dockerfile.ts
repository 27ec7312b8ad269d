// Runs the steps of a Dockerfile without a container: each stage is a folder, what the file calls `/app` is that
// folder's `app`. A file that is not there, one that .dockerignore keeps out, and a command that fails end it, as they
// would end `docker build`.
//
// Left out, and handed back as such: what needs the rights of root or changes the machine (`apt-get`, `install
// --owner`), and what is taken from images that come from a registry. Commands see this machine's files beside the
// stage's, so a system package that a Dockerfile forgets to install is not missed here.
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
  /** Where the stages' folders are made. */
  folder: string
  args?: Record<string, string>
  /** Called with a stage before its first step: brings what its steps would fetch. */
  prepare?(stage: Stage): void
}

const needsRoot = /^(apt-get |install .*--owner)/

/** Runs what the last stage needs, and returns that stage with the steps that were left out. */
export function buildOutside({ file, context, folder, args = {}, prepare }: Options): {
  stage: Stage
  leftOut: string[]
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
    const known = built.get(name)
    if (known) return known
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
        // `CMD ["…"]` behind the options.
        stage.healthcheck = JSON.parse(text.slice(text.indexOf('[')))
        if ((step as Healthcheck).getSubcommand()?.getValue() !== 'CMD')
          throw new Error('a health check that is no command')
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
        // The first node of the PATH is the image's.
        const env = {
          ...process.env,
          PATH: `${path.dirname(process.execPath)}:${process.env.PATH}`,
          ...seen,
          ...placed(stage),
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
        // An init for the container; the machine's own is there without one.
        if (strings().join(' ') !== 'tini --') break
        leftOut.push(`ENTRYPOINT ${text}`)
        return
    }
    throw new Error(`${step.getKeyword()} is not known here: teach it to tests/support/dockerfile.ts`)
  }

  /** Whether a stage is nothing but an image of a registry. */
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

  return { stage: build(stages.at(-1)!.name), leftOut }
}

/** Copies a tree as links to the same files: stages are many, and large. */
export function linkTree(from: string, to: string): void {
  mkdirSync(to, { recursive: true })
  for (const how of ['-al', '-a'])
    if (spawnSync('cp', [how, '--force', '--no-target-directory', from, to], { stdio: 'ignore' }).status === 0) return
  throw new Error(`${from} could not be copied to ${to}`)
}

/** The environment of a stage's processes: what names a place in the image names it in the stage's folder. */
export function placed({ env, folder, workdir, volumes }: Stage): Record<string, string> {
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
  // It is a function, whatever its types say of its default.
  const rules = (dockerignore as unknown as typeof dockerignore.default)().add(
    existsSync(file) ? readFileSync(file, 'utf8') : '',
  )
  return (name) => name !== '' && rules.ignores(path.posix.normalize(name).replace(/\/$/, ''))
}
