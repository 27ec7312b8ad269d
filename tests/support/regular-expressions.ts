import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { parseSync } from 'vite'
import { root } from '../../lib/root.ts'

const rooms = '{server,lib,engine,contract,cli,mcp,sdk,web,pictures,telemetry}'

export interface Expression {
  source: string
  flags: string
  /** The first file that has it. */
  file: string
}

/** The expressions of the sources, each once, and where a text becomes one. */
export function collectExpressions() {
  const expressions = new Map<string, Expression>()
  const texts: string[] = []
  for (const file of globSync(`${rooms}/**/*.{ts,tsx}`, { cwd: root })) {
    const code = readFileSync(path.join(root, file), 'utf8')
    if (!code.includes('/') && !code.includes('RegExp')) continue
    const visit = (node: unknown): void => {
      if (typeof node !== 'object' || node === null) return
      const { type, regex, callee } = node as {
        type?: string
        regex?: { pattern: string; flags: string }
        callee?: { name?: string }
      }
      if (regex)
        expressions.set(`/${regex.pattern}/${regex.flags}`, { source: regex.pattern, flags: regex.flags, file })
      if ((type === 'NewExpression' || type === 'CallExpression') && callee?.name === 'RegExp') texts.push(file)
      Object.values(node).forEach(visit)
    }
    visit(parseSync(file, code).program)
  }
  return { expressions, made: texts }
}
