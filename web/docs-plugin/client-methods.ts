// Which method of the client library stands for which operation of the API, for the examples of the API reference.
import { readFileSync } from 'node:fs'
import path from 'node:path'

interface ClientMethod {
  /** Such as `jobs.create`. */
  name: string
  /** Its arguments in order: parameters of the path by name, `body`, `query`, `file`, … */
  args: string[]
}

/** By method and path, such as `POST /fine-tuning/jobs`. Operations of OpenAI's clients alone are not among them. */
export function readClientMethods(root: string): Record<string, ClientMethod> {
  const methods: Record<string, ClientMethod> = {}
  const names: string[] = []
  let operation: string | undefined
  for (const line of readFileSync(path.join(root, 'sdk/generated/operations.ts'), 'utf8').split('\n')) {
    operation = /`([A-Z]+ \/\S*)` \*\/$/.exec(line)?.[1] ?? operation
    const group = /^( +)(\w+): \{$/.exec(line)
    if (group) names.splice(group[1]!.length / 2 - 1, names.length, group[2]!)
    const method = /^( +)(\w+): \((.*?)\) => /.exec(line)
    // One with several signatures is an object of them.
    const signature = /^ +\((.*?)\): /.exec(line)
    if (!operation || !(method ?? signature)) continue
    if (method) names.splice(method[1]!.length / 2 - 1, names.length, method[2]!)
    const args = [...(method?.[3] ?? signature![1]!).matchAll(/(?:^|, )(\w+)\??:/g)].map(([, name]) => name!)
    methods[operation] = { name: names.join('.'), args: args.filter((name) => name !== 'options') }
    operation = undefined
  }
  return methods
}
