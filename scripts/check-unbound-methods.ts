// Finds methods of our classes that are passed on as values, such as `jobs.sweep` for `() => jobs.sweep()`: they lose
// their object, which the type check does not see. A file is not checked again while itself and all that it imports
// are as in the last check that passed: asking for types takes most of the time.
import { createHash } from 'node:crypto'
import { existsSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type BindingElement, type Node, type SourceFile, SyntaxKind } from 'typescript/unstable/ast'
import {
  isBinaryExpression,
  isBindingElement,
  isCallExpression,
  isClassDeclaration,
  isIfStatement,
  isInterfaceDeclaration,
  isMethodDeclaration,
  isNonNullExpression,
  isObjectBindingPattern,
  isParenthesizedExpression,
  isPrefixUnaryExpression,
  isPropertyAccessExpression,
  isTemplateSpan,
  isTypeOfExpression,
} from 'typescript/unstable/ast/is'
import { API, type Symbol as TypedName } from 'typescript/unstable/sync'

const root = path.resolve(import.meta.dirname, '..')
const config = path.join(root, 'tsconfig.json')
const { include } = JSON.parse(readFileSync(config, 'utf8')) as { include: string[] }
const files = globSync(`{${include.join()}}/**/*.ts`, { cwd: root }).sort()
const texts = new Map(files.map((file) => [file, readFileSync(path.join(root, file), 'utf8')]))
const hashOf = (...parts: string[]) => createHash('sha256').update(parts.join('\0')).digest('hex')
const hashes = new Map([...texts].map(([file, text]) => [file, hashOf(file, text)]))
const settings = [config, path.join(root, 'package-lock.json'), import.meta.filename]
const common = hashOf(...settings.map((file) => readFileSync(file, 'utf8')))
const all = hashOf(common, ...hashes.values())
const passed = path.join(root, 'node_modules/.cache/unbound-methods/passed.json')
const last: { all?: string; keys: Record<string, string> } = existsSync(passed)
  ? JSON.parse(readFileSync(passed, 'utf8'))
  : { keys: {} }
if (last.all === all) process.exit(0)

const api = new API({ cwd: root })
const { program, checker } = api.updateSnapshot({ openProjects: [config] }).getProject(config)!
const sourceOf = (file: string) => program.getSourceFile(path.join(root, file)) ?? []

/** Names of methods: other accesses need no look at their types. */
const names = new Set<string>()
/** Names of the interfaces that classes implement. */
const implemented = new Set<string>()
for (const source of files.filter((file) => /\bclass\s/.test(texts.get(file)!)).flatMap(sourceOf))
  visit(source, (node) => {
    if (!isClassDeclaration(node)) return
    for (const member of node.members) if (isMethodDeclaration(member)) names.add(member.name.getText())
    for (const { token, types } of node.heritageClauses ?? [])
      if (token === SyntaxKind.ImplementsKeyword)
        for (const { expression } of types) implemented.add(expression.getText())
  })

/** Operators that take no function: what is read for them is a value. */
const operators = new Set([
  SyntaxKind.EqualsEqualsEqualsToken,
  SyntaxKind.ExclamationEqualsEqualsToken,
  SyntaxKind.LessThanToken,
  SyntaxKind.LessThanEqualsToken,
  SyntaxKind.GreaterThanToken,
  SyntaxKind.GreaterThanEqualsToken,
  SyntaxKind.PlusToken,
  SyntaxKind.MinusToken,
  SyntaxKind.AsteriskToken,
  SyntaxKind.SlashToken,
])

/** Whether what is read is called at once, or not passed on. */
function keepsObject(node: Node): boolean {
  const { parent } = node
  if (isTemplateSpan(parent) || isPrefixUnaryExpression(parent) || isIfStatement(parent)) return true
  if (isBinaryExpression(parent) && operators.has(parent.operatorToken.kind)) return true
  const isAssigned = isBinaryExpression(parent) && parent.operatorToken.kind === SyntaxKind.EqualsToken
  if (isAssigned && parent.left === node) return true
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

/** The files of ours that a file imports. */
function importsOf(file: string, text: string): string[] {
  const specifiers = [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/g)].map(([, specifier]) => specifier!)
  return specifiers.map((specifier) => path.join(path.dirname(file), specifier)).filter((found) => texts.has(found))
}

/** The hashes of a file and of all that it imports, also through others, in the order of their names. */
function closureOf(file: string): string[] {
  const closure = new Set([file])
  for (const member of closure) for (const imported of imports.get(member)!) closure.add(imported)
  return [...closure].sort().map((member) => hashes.get(member)!)
}

const imports = new Map([...texts].map(([file, text]) => [file, importsOf(file, text)]))
const methods = hashOf(common, ...[...names].sort(), ...[...implemented].sort())
const keys = Object.fromEntries(files.map((file) => [file, hashOf(methods, ...closureOf(file))]))
const problems = files
  .filter((file) => last.keys[file] !== keys[file])
  .flatMap(sourceOf)
  .flatMap(problemsOf)
api.close()
if (problems.length > 0) {
  console.error(`${problems.join('\n')}\nPass a function that calls it.`)
  process.exit(1)
}
mkdirSync(path.dirname(passed), { recursive: true })
writeFileSync(passed, JSON.stringify({ all, keys }))
