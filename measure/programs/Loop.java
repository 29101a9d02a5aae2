// A loop at 1 kHz over DatagramSocket: `Loop serve ADDRESS`, `Loop ask ADDRESS COUNT`. Prints for each cycle when it was
// due and when its answer came, in nanoseconds of the monotonic clock, and `lost` without one within a second.

import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.SocketTimeoutException;
import java.util.concurrent.locks.LockSupport;

public class Loop {
    static final long PERIOD_NS = 1_000_000;
    static final int WARM_UP = 200;
    static final int PORT = 5605;

    public static void main(String[] arguments) throws Exception {
        InetAddress address = InetAddress.getByName(arguments[1]);
        if (arguments[0].equals("serve")) {
            serve(address);
        }
        ask(address, Integer.parseInt(arguments[2]));
    }

    static void serve(InetAddress address) throws Exception {
        DatagramSocket socket = new DatagramSocket(PORT, address);
        byte[] bytes = new byte[1500];
        while (true) {
            DatagramPacket packet = new DatagramPacket(bytes, bytes.length);
            socket.receive(packet);
            socket.send(packet);
        }
    }

    static void ask(InetAddress address, int count) throws Exception {
        DatagramSocket socket = new DatagramSocket();
        socket.setSoTimeout(1000);
        byte[] bytes = new byte[64];
        String[] said = new String[WARM_UP + count];
        long due = System.nanoTime() + 100 * PERIOD_NS;
        for (int cycle = 0; cycle < said.length; cycle++) {
            due += PERIOD_NS;
            long left;
            while ((left = due - System.nanoTime()) > 0) {
                LockSupport.parkNanos(left);
            }
            socket.send(new DatagramPacket(bytes, bytes.length, address, PORT));
            try {
                socket.receive(new DatagramPacket(bytes, bytes.length));
                said[cycle] = due + " " + System.nanoTime();
            } catch (SocketTimeoutException late) {
                said[cycle] = due + " lost";
            }
        }
        for (int cycle = WARM_UP; cycle < said.length; cycle++) {
            System.out.println(said[cycle]);
        }
    }
}
