// The arithmetic of `calculate_output`: numbers, names of scores, + - * / ** and a few functions. Recursive descent.

const functions: Record<string, (...values: number[]) => number> = {
  min: Math.min,
  max: Math.max,
  abs: Math.abs,
  floor: Math.floor,
  ceil: Math.ceil,
  round: Math.round,
  sqrt: Math.sqrt,
  log: Math.log,
  exp: Math.exp,
}
const maxDepth = 50

export class FormulaError extends Error {}

type Formula = (scores: Readonly<Record<string, number>>) => number

/** Compiles a formula over the scores of these names. Throws FormulaError. */
export function compileFormula(text: string, names: readonly string[]): Formula {
  const tokens = text.match(/\*\*|[-+*/(),]|\d+(?:\.\d+)?(?:e[-+]?\d+)?|[A-Za-z_]\w*|\S/g) ?? []
  let at = 0
  const fail = (): never => {
    throw new FormulaError(
      at < tokens.length ? `'${tokens[at]!.slice(0, 30)}' is not expected there.` : 'The formula ends too early.',
    )
  }
  const take = (token: string) => {
    if (tokens[at] !== token) return false
    at++
    return true
  }
  const expect = (token: string) => take(token) || fail()

  function sum(depth: number): Formula {
    let left = product(depth)
    for (;;) {
      const [a, add] = [left, take('+')]
      if (!add && !take('-')) return left
      const b = product(depth)
      left = add ? (scores) => a(scores) + b(scores) : (scores) => a(scores) - b(scores)
    }
  }
  function product(depth: number): Formula {
    let left = power(depth)
    for (;;) {
      const [a, times] = [left, take('*')]
      if (!times && !take('/')) return left
      const b = power(depth)
      left = times ? (scores) => a(scores) * b(scores) : (scores) => a(scores) / b(scores)
    }
  }
  function power(depth: number): Formula {
    const base = factor(depth)
    if (!take('**')) return base
    const exponent = power(depth + 1)
    return (scores) => base(scores) ** exponent(scores)
  }
  function factor(depth: number): Formula {
    if (depth > maxDepth) throw new FormulaError('The formula is nested too deep.')
    if (take('-')) {
      const value = factor(depth + 1)
      return (scores) => -value(scores)
    }
    if (take('(')) {
      const value = sum(depth + 1)
      expect(')')
      return value
    }
    const token = tokens[at] ?? ''
    if (/^\d/.test(token)) {
      at++
      const value = Number(token)
      return () => value
    }
    if (!/^[A-Za-z_]/.test(token)) return fail()
    at++
    if (take('(')) {
      const apply = Object.hasOwn(functions, token) ? functions[token]! : undefined
      if (!apply)
        throw new FormulaError(`There is no function '${token}'. There are ${Object.keys(functions).join(', ')}.`)
      const values = [sum(depth + 1)]
      while (take(',')) values.push(sum(depth + 1))
      expect(')')
      return (scores) => apply(...values.map((value) => value(scores)))
    }
    if (!names.includes(token)) throw new FormulaError(`There is no grader '${token}'. There are ${names.join(', ')}.`)
    return (scores) => scores[token]!
  }

  const formula = sum(0)
  if (at < tokens.length) fail()
  return formula
}
