// tests/server/clients/program.mjs - `sheaf serve` as a process of its own, on a port that is free.
import { spawn } from 'node:child_process';
import { get } from 'node:http';
import { until } from '../../tools/tap.mjs';

export class Program {
  log = ''; // its standard error

  // Returns when it listens.
  static async start(sheaf, ...flags) {
    const p = new Program();
    let said = '';
    p.child = spawn(sheaf, ['serve', '-m', 'models/sheaf-demo', '--port', '0', '--log-format', 'json', ...flags],
      { stdio: ['ignore', 'pipe', 'pipe'] });
    p.child.stdout.on('data', (data) => { said += data; });
    p.child.stderr.on('data', (data) => { p.log += data; });
    p.gone = new Promise((resolve) => p.child.on('exit', (code) => resolve(code)));
    process.on('exit', () => p.child.kill('SIGKILL'));
    const found = await until('the server listens', () => {
      if (p.child.exitCode !== null) throw new Error(p.log);
      return /^listening on (.*)\n/m.exec(said);
    });
    p.url = found[1];
    return p;
  }

  // Over a connection of its own: what tests look with shall not disturb what they look at.
  stats() {
    const options = { agent: false, headers: { Authorization: `Bearer ${this.key}` } };
    return new Promise((resolve, reject) => get(`${this.url}/v1/cache/stats`, options, (reply) => {
      let text = '';
      reply.on('data', (data) => { text += data; });
      reply.on('end', () => resolve(JSON.parse(text)));
      reply.on('error', reject);
    }).on('error', reject));
  }

  // Until nothing runs or waits; returns the statistics.
  idle() {
    return until('nothing runs', async () => {
      const stats = await this.stats();
      return stats.requests_running + stats.requests_waiting === 0 && stats;
    });
  }

  // SIGTERM; returns the exit code.
  stop() {
    this.child.kill('SIGTERM');
    return this.gone;
  }
}
