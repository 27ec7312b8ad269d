// Finds methods of our classes that are passed on as values, such as `jobs.sweep` for `() => jobs.sweep()`: they lose
// their object, which the type check does not see. What has not changed since the last check that passed is not read
// again.
import { createHash } from 'node:crypto'
import { existsSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type BindingElement, type Node, type SourceFile, SyntaxKind } from 'typescript/unstable/ast'
import {
  isBindingElement,
  isCallExpression,
  isClassDeclaration,
  isInterfaceDeclaration,
  isMethodDeclaration,
  isNonNullExpression,
  isObjectBindingPattern,
  isParenthesizedExpression,
  isPropertyAccessExpression,
  isTypeOfExpression,
} from 'typescript/unstable/ast/is'
import { API, type Symbol as TypedName } from 'typescript/unstable/sync'

const root = path.resolve(import.meta.dirname, '..')
const config = path.join(root, 'tsconfig.json')
const { include } = JSON.parse(readFileSync(config, 'utf8')) as { include: string[] }
const files = globSync(`{${include.join()}}/**/*.ts`, { cwd: root }).sort()
const hash = createHash('sha256')
for (const file of files) hash.update(`${file}\0`).update(readFileSync(path.join(root, file)))
const key = hash.digest('hex')
const passed = path.join(root, 'node_modules/.cache/unbound-methods/passed')
if (existsSync(passed) && readFileSync(passed, 'utf8') === key) process.exit(0)

const api = new API({ cwd: root })
const { program, checker } = api.updateSnapshot({ openProjects: [config] }).getProject(config)!
const sources = files.flatMap((file) => program.getSourceFile(path.join(root, file)) ?? [])

/** Names of methods: other accesses need no look at their types. */
const names = new Set<string>()
/** Names of the interfaces that classes implement. */
const implemented = new Set<string>()
for (const source of sources)
  visit(source, (node) => {
    if (!isClassDeclaration(node)) return
    for (const member of node.members) if (isMethodDeclaration(member)) names.add(member.name.getText())
    for (const { token, types } of node.heritageClauses ?? [])
      if (token === SyntaxKind.ImplementsKeyword)
        for (const { expression } of types) implemented.add(expression.getText())
  })

/** Whether what is read is called at once, or not passed on. */
function keepsObject(node: Node): boolean {
  const { parent } = node
  if (isNonNullExpression(parent) || isParenthesizedExpression(parent)) return keepsObject(parent)
  return (
    (isCallExpression(parent) && parent.expression === node) ||
    (isPropertyAccessExpression(parent) && parent.expression === node) ||
    isTypeOfExpression(parent)
  )
}

function problemsOf(source: SourceFile): string[] {
  const reads: Node[] = []
  const bindings: BindingElement[] = []
  visit(source, (node) => {
    if (isPropertyAccessExpression(node) && names.has(node.name.text) && !keepsObject(node)) reads.push(node.name)
    if (isBindingElement(node) && isObjectBindingPattern(node.parent) && names.has(readName(node))) bindings.push(node)
  })
  const symbols = checker.getSymbolAtLocation(reads)
  const types = checker.getTypeAtLocation(bindings.map(({ parent }) => parent))
  const lost = [
    ...reads.filter((_, index) => isMethod(symbols[index])),
    ...bindings.filter((node, index) => isMethod(checker.getPropertyOfType(types[index]!, readName(node)))),
  ]
  return lost.map((node) => {
    const line = source.text.slice(0, node.getStart()).split('\n').length
    return `${path.relative(root, source.fileName)}:${line}: the method '${node.getText()}' loses its object.`
  })
}

const readName = ({ propertyName, name }: BindingElement) => (propertyName ?? name)!.getText()

/** By declaration: in a type such as Pick a method is a property, without an owner. */
const isMethod = (symbol: TypedName | undefined): boolean =>
  symbol?.declarations.some((handle) => {
    if (handle.kind !== SyntaxKind.MethodDeclaration && handle.kind !== SyntaxKind.MethodSignature) return false
    const owner = handle.resolve()?.parent
    if (!owner) return false
    return isClassDeclaration(owner) || (isInterfaceDeclaration(owner) && implemented.has(owner.name.text))
  }) ?? false

function visit(node: Node, look: (node: Node) => void): void {
  look(node)
  node.forEachChild((child) => visit(child, look))
}

const problems = sources.flatMap(problemsOf)
api.close()
if (problems.length > 0) {
  console.error(`${problems.join('\n')}\nPass a function that calls it.`)
  process.exit(1)
}
mkdirSync(path.dirname(passed), { recursive: true })
writeFileSync(passed, key)
