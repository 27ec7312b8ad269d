// Whether two models of an account were asked the same in this browser.
const keyOf = (account: string) => `tunery.compared.${account}`

export function noteComparison(account: string): void {
  try {
    localStorage.setItem(keyOf(account), '1')
  } catch {
    // Storage may be refused: home then shows the step as open.
  }
}

export function hasCompared(account: string): boolean {
  try {
    return localStorage.getItem(keyOf(account)) !== null
  } catch {
    return false
  }
}
