export async function checkMachine(): Promise<void> {}
